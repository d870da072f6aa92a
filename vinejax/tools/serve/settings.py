"""The settings of `--mode=serve`."""

from typing import ClassVar

from vinejax.core.ranges import Count, Port, Positive
from vinejax.core.sections import Section


class ServeConfig(Section, section="serve"):
    """`--mode=serve`: the address and the limits of the server, see docs/serve.md.

    The environment variable VINEJAX_API_KEY sets a key that every request must have.
    """

    may_change: ClassVar[bool] = True

    host: str = "127.0.0.1"  # address to listen at; '0.0.0.0': all of this machine's
    port: Port = 8000
    max_tokens: Count | None = None  # most tokens of a response; None: sample.max_tokens
    # Most tokens of a prompt, or of a prompt with a solution; None: data.max_prompt_tokens and
    # max_tokens together.
    prompt_tokens: Count | None = None
    choices: Count = 128  # most responses to one request, over all of its prompts
    continuations: Count = 4096  # most continuations for one request to /v1/step_values
    requests: Count = 256  # requests that are answered or wait at a time; a further one gets 429
    samplings: Count = 8  # compiled (temperature, top_p, top_k); a further one gets 400
    body_kib: Count = 1024  # most KiB of a request's body
    timeout_s: Positive = 600.0  # seconds within which a request must be answered
