"""POPri's reward: how close a text is to the texts of many clients, with noise.

    --config.method=popri
    --config.reward.functions="('vinejax.contrib.examples.noised_votes.votes',)"

    s(y) = (Σ_clients mean of cos(y, text) over the client's texts + `noise`·N(0, 1)) / clients

The variable POPRI_CLIENTS names a JSON file {"clients": [[text, ...], ...], "noise": 3.0, "key":
"a secret"}. cos compares counts of trigrams. A client changes the sum by at most 1. The noise of a
text is drawn from the text and the key, so a run that is resumed has the same rewards, and a text
that comes twice tells nothing more. Who knows the key can take the noise away.

Source: https://arxiv.org/abs/2504.16438; meiyuw/POPri at 2f0ac43, `client_feedback.py`,
`neural_scores_for_policy`.

Departs: trigrams stand for a sentence embedding. The code standardises the sums of each client over
the samples of a round and clips their norm to 1, here each sum of a client is a mean in [0, 1]. No
privacy budget is computed: with R different texts the sum's sensitivity is √R.
"""

import collections
import functools
import hashlib
import json
import math
import os
from typing import Any

import numpy as np

from vinejax.core.errors import UserError

VARIABLE = "POPRI_CLIENTS"
Counts = collections.Counter[str]


def votes(response: str) -> float:
    """The noised mean vote of all clients for a response."""
    clients, noise, key = read(os.environ.get(VARIABLE, ""))
    own = trigrams(response)
    total = sum(sum(cosine(own, text) for text in texts) / len(texts) for texts in clients)
    digest = hashlib.blake2b(response.encode(), key=key, digest_size=16).digest()
    drawn = np.random.default_rng(int.from_bytes(digest)).normal()
    return float((total + noise * drawn) / len(clients))


def trigrams(text: str) -> Counts:
    """The counts of all substrings of three characters, in lower case."""
    text = text.lower()
    return collections.Counter(text[i : i + 3] for i in range(len(text) - 2))


def cosine(a: Counts, b: Counts) -> float:
    """The cosine of the angle between two counts; 0 if one of them is empty."""
    norms = math.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))
    return sum(count * b[name] for name, count in a.items()) / norms if norms else 0.0


@functools.lru_cache(1)
def read(path: str) -> tuple[list[list[Counts]], float, bytes]:
    """(the trigrams of each client's texts, noise, key) of the file. Raises UserError."""
    try:
        with open(path, encoding="utf-8") as file:
            found: Any = json.load(file)
        clients = [[trigrams(text) for text in texts] for texts in found["clients"]]
        noise, key = float(found["noise"]), found["key"].encode()
        hashlib.blake2b(key=key)  # ValueError if the key has more than 64 bytes
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = "must name a JSON file with clients, noise and key (noised_votes.py)"
        raise UserError(f"{VARIABLE} = {path!r}: {message}: {error!r}") from None
    if not clients or not all(clients):
        raise UserError(f"{VARIABLE} = {path!r}: every client needs a text")
    return clients, noise, key
