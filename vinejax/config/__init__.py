"""Configurations: reads files and the command line into settings, and checks them.

Config files import from here: `default`, `from_file` and the settings' classes.
"""

from vinejax.config.load import Fields as Fields
from vinejax.config.load import default as default
from vinejax.config.load import from_dict as from_dict
from vinejax.config.load import from_file as from_file
from vinejax.core.settings import *  # noqa: F403  (for tasks and methods of users)
