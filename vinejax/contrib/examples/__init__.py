"""Small rewards, tasks and environments after published systems, each in a module of its own."""
