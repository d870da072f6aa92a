"""`--mode=serve`: the engine behind OpenAI's HTTP interface, and values of reasoning steps."""
