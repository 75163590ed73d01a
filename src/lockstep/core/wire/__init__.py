"""What travels over HTTP: the bodies and answers of the routes, and how they become our records and back."""
