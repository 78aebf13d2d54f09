"""FedDMVC in the nearest form that sums allow: clusters over all hospitals teach every view's encoder."""
