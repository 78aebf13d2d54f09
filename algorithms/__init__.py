"""Research algorithms, written against sums: no type through which a server step could see one hospital.

Imports secfed.dp and what lies below it.
"""
