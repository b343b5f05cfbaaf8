"""Gradio: named endpoints behind the page for its clients, and components to embed."""
