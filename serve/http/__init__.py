"""HTTP middleware: hosts, sign-in, limits, logs and problem documents."""
