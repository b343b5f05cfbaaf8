"""Rendering: reports, comparisons and contact sheets as HTML, figures as SVG."""
