"""Transactions over topics and positions: joins the room `tx`, which decides, with `topic` and
`group`, which store."""
