package torch

// Fail ends the call of Do around it, which returns err. It is for code that computes in a scope and has no error to return.
func (s *Scope) Fail(err error) { panic(failed{err}) }

// failed is what Fail panics with.
type failed struct{ error }

// Records says whether operators record the graph that Backward needs.
func (s *Scope) Records() bool { return s.mode == Train }
