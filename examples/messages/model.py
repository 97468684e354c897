"""A stand-in for a language model behind an HTTP API: slow, billed by tokens, and busy now and then.

POST /classify answers with a topic, a mood and the tokens used; the first request for every fifth message gets 429 instead.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TOPICS = {"refund": "money", "invoice": "money", "broken": "repair", "late": "delivery", "parcel": "delivery"}

seen = set()
lock = threading.Lock()


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        time.sleep(0.2)
        with lock:
            busy = text not in seen and sum(text.encode()) % 5 == 0
            seen.add(text)
        words = text.lower().replace(".", " ").replace("!", " ").split()
        answer = {
            "topic": next((_TOPICS[word] for word in words if word in _TOPICS), "other"),
            "mood": "angry" if "!" in text else "calm",
            "tokens": len(words),
        }
        self.send_response(429 if busy else 200)
        if busy:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(b"" if busy else json.dumps(answer).encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
