package app

import (
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
)

// pairRow is a line of --output-rows for preferences: a pair, or a single labelled response.
type pairRow struct {
	Row            string   `json:"row"` // file and line
	Prompt         string   `json:"prompt,omitempty"`
	Chosen         *string  `json:"chosen,omitempty"`
	Rejected       *string  `json:"rejected,omitempty"`
	RewardChosen   *float64 `json:"reward_chosen,omitempty"`
	RewardRejected *float64 `json:"reward_rejected,omitempty"`
	LogPChosen     *float64 `json:"logps_chosen,omitempty"`
	LogPRejected   *float64 `json:"logps_rejected,omitempty"`
	Margin         float64  `json:"margin"`
	Correct        bool     `json:"correct"` // the margin is above 0
}

// policyRows are the pairs and single responses that a policy was evaluated on.
func policyRows(p *policy.CausalLM, found policy.Preferences, scores []evaluate.UnitScore) (rows []pairRow, err error) {
	for i, unit := range found.Units {
		row := pairRow{Row: found.Places[i], Margin: scores[i].Margin, Correct: scores[i].Margin > 0}
		for k, x := range unit {
			first := x.Rows[0] + 1 // a token is predicted by the one before it
			if row.Prompt, err = p.Tokenizer.Decode(x.Tokens[:first], false); err != nil {
				return nil, err
			}
			response, err := p.Tokenizer.Decode(x.Tokens[first:], false)
			if err != nil {
				return nil, err
			}
			reward, logProb := &scores[i].Rewards[k], &scores[i].LogProbs[k]
			if k == 0 && (len(unit) == 2 || x.Truth == 1) {
				row.Chosen, row.RewardChosen, row.LogPChosen = &response, reward, logProb
			} else {
				row.Rejected, row.RewardRejected, row.LogPRejected = &response, reward, logProb
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// rewardRows are the pairs that a reward model was evaluated on: each two responses of a unit.
func rewardRows(m *policy.RewardModel, found policy.Preferences, scores []evaluate.UnitScore) (rows []pairRow, err error) {
	for i, unit := range found.Units {
		texts := make([]string, len(unit))
		for k, x := range unit {
			if texts[k], err = m.Tokenizer.Decode(x.Tokens, false); err != nil {
				return nil, err
			}
		}
		rewards := scores[i].Rewards
		for a := range unit {
			for b := a + 1; b < len(unit); b++ {
				margin := rewards[a] - rewards[b]
				rows = append(rows, pairRow{
					Row: found.Places[i], Chosen: &texts[a], Rejected: &texts[b], RewardChosen: &rewards[a], RewardRejected: &rewards[b],
					Margin: margin, Correct: margin > 0,
				})
			}
		}
	}
	return rows, nil
}
