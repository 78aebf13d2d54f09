"""Scripts of v1.1: everybody's messages but one party's, and what that party must answer."""
