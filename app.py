"""Serve a gallery from a checkout: python app.py --gallery GALLERY [--host 127.0.0.1] [--port 7860]."""

from serve.commands import app

if __name__ == "__main__":
    app()
