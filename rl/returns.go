package rl

import "fmt"

// ReturnsToGo returns G_t = r_t + γ·G_{t+1} for the rewards of one episode, oldest
// first. A missing reward, NaN, makes its own return and all before it missing.
func ReturnsToGo(rewards []float64, gamma float64) []float64 {
	returns := make([]float64, len(rewards))
	next := 0.0
	for t := len(rewards) - 1; t >= 0; t-- {
		next = rewards[t] + gamma*next
		returns[t] = next
	}
	return returns
}

// OverlongPenalty is the soft penalty of a completion of length tokens, to be added to
// its reward (DAPO, equation 13):
//
//	0                                 length ≤ most − buffer
//	((most − buffer) − length)/buffer  between
//	−1                                length > most
//
// It panics unless 0 < buffer ≤ most.
func OverlongPenalty(length, most, buffer int) float64 {
	if buffer <= 0 || buffer > most {
		panic(fmt.Sprintf("rl.OverlongPenalty: a buffer of %d of at most %d tokens", buffer, most))
	}
	over := length - (most - buffer)
	return -min(1, max(0, float64(over)/float64(buffer)))
}
