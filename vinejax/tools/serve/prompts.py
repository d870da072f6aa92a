"""The token ids of a request's prompts."""

import inspect
import re
import threading
from collections.abc import Sequence
from typing import Any

from vinejax.core.errors import UserError
from vinejax.core.text import Tokenizer
from vinejax.tasks.prompts import LONGEST_TOKEN, encode_prompt, writes_tools
from vinejax.tools.serve.parsing import RequestError
from vinejax.tools.serve.requests import Limits, TextRequest


class PromptEncoder:
    """Encodes prompts, one at a time: tokenizers are not safe in several threads.

    `lock` is held meanwhile; others who encode with the tokenizer must hold it, too.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits):
        self._tokenizer, self._limits = tokenizer, limits
        self.lock = threading.Lock()

    def prompts_of(self, request: TextRequest) -> list[list[int]]:
        """The ids of each prompt of a request.

        Raises RequestError for a prompt that is too long, for a model without a chat template, and
        for messages with which the template fails.
        """
        if request.is_chat:
            return [self._chat(request)]
        return [self._ids(prompt) for prompt in request.prompts]

    def check_room(self, ids: Sequence[int], max_tokens: int | None) -> int:
        """The budget of a response to a prompt: `max_tokens`, or all that the limits allow.

        Raises RequestError if the prompt and `max_tokens` are more than the model's context.
        """
        limits = self._limits
        if len(ids) > limits.prompt_tokens:
            message = f"the prompt has {len(ids)} tokens, of which {limits.prompt_tokens} are"
            raise RequestError(400, f"{message} allowed", "prompt")
        room = min(limits.context - len(ids), limits.max_tokens)
        if max_tokens is None and room > 0:
            return room
        if len(ids) + (max_tokens or 0) > limits.context or max_tokens is None:
            message = f"the model's context is {limits.context} tokens, and the request has"
            wanted = f"{len(ids)} of its prompt and {max_tokens or 1} of max_tokens"
            raise RequestError(400, f"{message} {wanted}", "max_tokens")
        return max_tokens

    def _ids(self, prompt: str | tuple[int, ...]) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        self._check_length(prompt)
        try:
            with self.lock:
                return encode_prompt(self._tokenizer, prompt, chat_template=False)
        except UserError as error:
            raise RequestError(400, f"prompt: {error}", "prompt") from None

    def _chat(self, request: TextRequest) -> list[int]:
        if self._tokenizer.chat_template is None:
            message = "the model has no chat template; use /v1/completions"
            raise RequestError(400, message, "messages")
        self._check_variables(request)
        self._check_length("".join(message["content"] for message in request.messages))
        tools: Any = list(request.tools) or None
        try:
            template = str(self._tokenizer.get_chat_template(tools=tools))
            with self.lock:
                text = self._tokenizer.apply_chat_template(
                    _with_known_roles(request.messages, template),
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=True,
                    **request.template_vars,
                )
                ids = self._tokenizer.encode(str(text), add_special_tokens=False, verbose=False)
        except Exception as error:  # of jinja2, or of any expression in the template
            message = f"the chat template fails: {type(error).__name__}: {str(error):.200}"
            raise RequestError(400, message, "messages") from None
        if tools and not writes_tools(template):
            message = "tools: the model's chat template writes no tools; leave them out"
            raise RequestError(400, message, "tools")
        if not ids:
            raise RequestError(400, "the chat template gives no tokens", "messages")
        return list(ids)

    def _check_variables(self, request: TextRequest) -> None:
        """Raises RequestError for a variable with the name of a parameter of the tokenizer.

        The tokenizer would take it for that parameter. A template in `chat_template` could run for
        hours, while all other prompts wait.
        """
        parameters = inspect.signature(self._tokenizer.apply_chat_template).parameters
        for name in request.template_vars:
            if name in parameters and name != "documents":  # which all templates may read
                message = f"{name!r} is no variable of the model's chat template; leave it out"
                raise RequestError(400, f"chat_template_kwargs: {message}", "chat_template_kwargs")

    def _check_length(self, text: str) -> None:
        """Raises RequestError for a text that no prompt within the limit can have.

        To encode a hundred megabytes would take minutes.
        """
        most = self._limits.prompt_tokens * LONGEST_TOKEN
        if len(text) > most:
            message = f"the prompt has {len(text)} characters, of which {most} are allowed"
            raise RequestError(400, message, "prompt")


def _with_known_roles(messages: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """The messages, with the role 'system' in place of 'developer'.

    Most chat templates leave out messages of roles that they do not know. A template that names the
    role 'developer' gets it.
    """
    if re.search(r"""["']developer["']""", template):
        return list(messages)
    return [
        {**message, "role": "system"} if message["role"] == "developer" else message
        for message in messages
    ]
