"""What goes over the wire: models of the requests and responses, which server and client share."""
