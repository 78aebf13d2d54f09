"""Research algorithms, written against sums: no type through which a server step could see one hospital."""
