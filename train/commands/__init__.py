"""Sub-commands of `lookalike` for training; each module is imported when its command is used."""

DATA_HELP = "folder:DIR, csv:FILE, hf:USER/NAME, NAME:ROOT or a bundled name; see `lookalike datasets list`."
