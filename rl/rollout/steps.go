package rollout

import (
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
)

// message is where the tokens of a message are in its trajectory.
type message struct {
	start int   // its first token
	ends  []int // length of its text after each token
}

// stepsOf turns steps of messages into steps of their trajectories; nil without any. The last step of a message ends with its turn,
// whose reward has its reward.
func stepsOf(scored [][]reward.Step, messages []message) [][]rl.Turn {
	if scored == nil {
		return nil
	}
	all := make([][]rl.Turn, len(scored))
	for i, steps := range scored {
		m, at := messages[i], 0
		for _, step := range steps[:max(0, len(steps)-1)] {
			for at < len(m.ends) && m.ends[at] < step.End {
				at++
			}
			if at >= len(m.ends)-1 {
				break // it ends with the turn
			}
			all[i] = append(all[i], rl.Turn{End: m.start + at + 1, Reward: step.Value})
		}
	}
	return all
}
