"""The settings of tasks that run programs."""

from typing import Any, ClassVar, Literal

from vinejax.core.errors import ConfigError
from vinejax.core.sections import Section


class CodeConfig(Section, section="code"):
    """Settings of the tasks that run programs; `grader.*` has the limits of programs."""

    of_task: ClassVar[bool] = True
    # Place where programs run: confined by the kernel, by `command`, by a service, or not at all.
    sandbox: Literal["kernel", "command", "http", "none"] = "kernel"
    # Command of the sandbox 'command' up to its interpreter: ('bwrap', '--unshare-all', 'python3')
    command: tuple[str, ...] = ()
    url: str = ""  # address of the sandbox 'http', such as 'http://127.0.0.1:8080/run_code'
    partial: bool = False  # whether the reward is the share of tests that pass, not 0 or 1
    steps: Literal["lines", "blocks"] = "lines"  # steps of code; blank lines separate 'blocks'

    def check(self, cfg: Any) -> None:
        """Raises ConfigError if the chosen sandbox needs `url` or `command` and this is empty.

        Also raises it if one of these fields is set, but the chosen sandbox does not read it.
        """
        needs = {"command": "the command up to python3", "http": "the address, with /run_code"}
        for sandbox, words in needs.items():
            field = "url" if sandbox == "http" else sandbox
            value = getattr(self, field)
            if value and self.sandbox != sandbox:
                message = f"needs code.sandbox = {sandbox!r}; leave it out"
                raise ConfigError(f"code.{field}", message, repr(value))
            if self.sandbox == sandbox and not value:
                message = f"must be {words} of the sandbox {sandbox!r}"
                raise ConfigError(f"code.{field}", message, repr(value))
