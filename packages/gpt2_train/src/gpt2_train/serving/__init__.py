"""Serving texts over HTTP, in the shapes of OpenAI's API for completions.

The parts, in the order in which a request meets them: `middleware` (who may ask), `app` (the paths), `requests` (a body
into texts to write), `model_thread` (the one thread that uses the model), `responses` (pieces of text into JSON).
`page` holds the page at `/`. Only `gpt2 serve` imports them, and with them Starlette and uvicorn.
"""
