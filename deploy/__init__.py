"""What an operator runs between machines: keys, policy, enrolment, transport, admission, both processes."""
