// Package rl holds the parts of learning that need no tensors: trajectories and samples, advantages and returns, replay
// buffers, schedules, metrics, evaluation, random streams.
//
// It is plain Go on slices and builds without cgo. It reads neither the clock nor a global random source. What has state has
// State and Restore; a state survives JSON exactly, so a resumed run continues as if it had never stopped. Policies are in
// rl/policy, episodes in rl/rollout, run folders in rl/run, losses in rl/algo.
package rl
