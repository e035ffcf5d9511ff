// Package rl holds the parts of learning that need no tensors: trajectories and the
// samples made of them, advantages and returns, the replay buffer, schedules, figures,
// evaluation, random streams.
//
// Everything here is plain Go on slices and builds without cgo. What acts is in
// rl/policy, how episodes are played in rl/rollout, what a run leaves behind in rl/run,
// the losses in rl/algo. Nothing here reads the clock or a global random source. What
// carries state has State and Restore; a state encodes to JSON and comes back exactly,
// so that a resumed run goes on as if it had never stopped.
package rl
