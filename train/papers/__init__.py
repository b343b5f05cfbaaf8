"""The five papers: reproduction of their tables, their figures and analyses, and the commands for both."""
