"""Asks a model about each message, with many questions in flight."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

import volstream


@dataclass
class Answer:
    topic: str
    mood: str
    tokens: int


@volstream.function(concurrency=16)
def classify(file: volstream.File, model: str) -> Answer:
    question = urllib.request.Request(f"{model}/classify", data=file.read_bytes())
    try:
        with urllib.request.urlopen(question, timeout=30) as reply:
            answer = Answer(**json.load(reply))
    except urllib.error.HTTPError as error:
        if error.code == 429:
            raise volstream.RetryLater("the model is busy", after=float(error.headers["Retry-After"])) from None
        raise
    file.count("tokens", answer.tokens)
    return answer
