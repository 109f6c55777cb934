"""What is stored of delayed messages: the rows of a topic's map, and who may write them."""
