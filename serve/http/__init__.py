"""HTTP middleware: host check, sign-in, rate limits, body limits, access log and problem documents."""
