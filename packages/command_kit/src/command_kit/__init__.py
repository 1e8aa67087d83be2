"""The parts that the `webtext` and `gpt2` commands share: settings, errors, atomic files, progress.

`settings` turns one frozen dataclass into flags and TOML keys; `errors` and `command` turn failures into one sentence
and an exit code; `atomic` writes files that appear complete or not at all; `progress` shows
rate and time left; `charts` draws.
"""

from command_kit.atomic import atomic_file, atomic_folder, read_json, write_json, write_text
from command_kit.command import run_command
from command_kit.errors import CommandError, UsageError, hide_credentials, parse_json
from command_kit.machine import available_cores
from command_kit.parsing import Parser, add_shell_flags
from command_kit.progress import Progress, duration
from command_kit.settings import add_config_flag, add_flags, setting, settings_from

__all__ = [
    "CommandError",
    "Parser",
    "Progress",
    "UsageError",
    "add_config_flag",
    "add_flags",
    "add_shell_flags",
    "atomic_file",
    "atomic_folder",
    "available_cores",
    "duration",
    "hide_credentials",
    "parse_json",
    "read_json",
    "run_command",
    "setting",
    "settings_from",
    "write_json",
    "write_text",
]
