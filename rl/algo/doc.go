// Package algo holds the learning algorithms: one file each, to be read from top to bottom like its paper,
// on the policies they train.
//
// Losses are functions of tensors; everything else (rollouts, advantages, schedules, evaluation, folders)
// is plain Go in package rl.
package algo
