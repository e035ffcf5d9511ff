// Package rl holds the parts of learning that need no tensors: random streams,
// advantages, rollout buffers, schedules, evaluation and what a run leaves behind.
//
// Everything here is plain Go on slices and builds without cgo; the algorithms that
// turn these numbers into tensor losses live in rl/algo. Nothing here reads the clock
// or a global random source, and everything that carries state has State and Restore,
// whose values encode to JSON and come back exactly, so that a resumed run continues
// as if it had never stopped.
package rl
