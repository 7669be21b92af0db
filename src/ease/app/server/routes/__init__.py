"""The routes of the HTTP interface, a module for each family; each has `add_routes(app, service)`."""
