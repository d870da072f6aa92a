"""The settings of tasks that run programs."""

from typing import Any, ClassVar, Literal

from vinejax.core.errors import ConfigError
from vinejax.core.sections import Section


class CodeConfig(Section, section="code"):
    """Tasks `code` and `python_tool`, which run programs; grader.* limits them."""

    of_task: ClassVar[bool] = True
    # Where they run: confined by the kernel, by `command`, by a service, or not confined at all.
    sandbox: Literal["kernel", "command", "http", "none"] = "kernel"
    # Sandbox 'command': what starts an interpreter in it, ('bwrap', '--unshare-all', 'python3')
    command: tuple[str, ...] = ()
    url: str = ""  # sandbox 'http': SandboxFusion's, such as 'http://127.0.0.1:8080/run_code'
    partial: bool = False  # the reward is the share of tests that pass; else 1 for all, or 0
    steps: Literal["lines", "blocks"] = "lines"  # of code; 'blocks': what blank lines separate

    def check(self, cfg: Any) -> None:
        """Refuses a sandbox without its address or command, and either without its sandbox."""
        needs = {"command": "what starts an interpreter", "http": "the address, with /run_code"}
        for sandbox, words in needs.items():
            field = "url" if sandbox == "http" else sandbox
            value = getattr(self, field)
            if value and self.sandbox != sandbox:
                rule = f"needs code.sandbox = {sandbox!r}; leave it out"
                raise ConfigError(f"code.{field}", rule, repr(value))
            if self.sandbox == sandbox and not value:
                rule = f"names {words} of the sandbox {sandbox!r}"
                raise ConfigError(f"code.{field}", rule, repr(value))
