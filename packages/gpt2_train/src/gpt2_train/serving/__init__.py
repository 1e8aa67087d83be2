"""Serving texts over HTTP, in the shapes of OpenAI's API for completions.

The parts, in the order in which a request meets them: `server` (connections), `middleware` (who may ask), `app` (the
paths), `completions` (a body into texts to write, and their pieces into JSON), `model_thread` (the one thread that uses
the model). `page` holds the page at `/`. Only `gpt2 serve` imports them, and with them Starlette and hypercorn.
"""
