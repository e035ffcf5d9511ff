package rl

import "fmt"

// GAE computes generalised advantage estimates and value targets for one or several
// trajectories laid end to end, oldest step first.
//
// rewards, values and done have one entry a step. done[t] says that step t ended its
// episode: nothing after it reaches back over it. last is the value estimate of the
// state that follows the final step; it counts only when that step is not done (a
// rollout cut off in the middle of an episode).
//
//	δ_t = r_t + γ·V_{t+1}·(1−done_t) − V_t
//	A_t = δ_t + γλ·(1−done_t)·A_{t+1}        returns_t = A_t + V_t
//
// Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized
// Advantage Estimation", equations 11, 12 and 16. λ = 0 is the one-step TD residual,
// λ = 1 the discounted return less the value; a bandit (every step done) gives r − V.
// Sums run in float64. It panics when the lengths differ.
func GAE(rewards, values []float32, done []bool, last float32, gamma, lambda float64) (advantages, returns []float32) {
	n := len(rewards)
	if len(values) != n || len(done) != n {
		panic(fmt.Sprintf("rl.GAE: %d rewards, %d values, %d done flags: the lengths must agree", n, len(values), len(done)))
	}
	both := make([]float32, 2*n)
	advantages, returns = both[:n:n], both[n:]
	next, advantage := float64(last), 0.0
	for t := n - 1; t >= 0; t-- {
		if done[t] {
			next, advantage = 0, 0
		}
		value := float64(values[t])
		advantage = float64(rewards[t]) + gamma*next - value + gamma*lambda*advantage
		advantages[t] = float32(advantage)
		returns[t] = float32(advantage + value)
		next = value
	}
	return advantages, returns
}
