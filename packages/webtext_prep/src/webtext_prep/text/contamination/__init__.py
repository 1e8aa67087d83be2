"""Finding the n-grams of evaluation texts in documents, and cutting them out; apart from the stage that uses them."""
