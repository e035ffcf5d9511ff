package math

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// ScoreReward asks a judge to score a step from 1 to 10. The reward is the expected score divided by 10, times scale:
// (scale/10)·Σ_k k·P(k).
func ScoreReward(judge envs.Scorer, scale float64) envs.Reward {
	choices := make([]string, 10)
	for i := range choices {
		choices[i] = strconv.Itoa(i + 1)
	}
	return func(ctx context.Context, c envs.Completion) (float64, error) {
		shares, err := ask(ctx, judge, c, "Score the step from 1 (useless or wrong) to 10 (correct and helpful).", "Score (from 1 to 10):", choices)
		if err != nil {
			return 0, err
		}
		expected := 0.0
		for i, p := range shares {
			expected += float64(i+1) * p
		}
		return scale * expected / 10, nil
	}
}

// questions are the questions of AspectsReward.
var questions = []string{
	"Does the step add something that the solution did not have yet?",
	"Does the step bring the solution closer to the answer?",
	"Is the step mathematically sound?",
}

// AspectsReward asks a judge three yes/no questions about a step: is it new, does it make progress, is it sound. The
// reward is the mean of P(Yes); a step that gives the correct final answer gets final instead.
func AspectsReward(judge envs.Scorer, final float64) envs.Reward {
	return func(ctx context.Context, c envs.Completion) (float64, error) {
		if c.Info != nil && c.Info.Correct && c.Info.FormatOK {
			return final, nil
		}
		sum := 0.0
		for _, question := range questions {
			shares, err := ask(ctx, judge, c, question+" Answer with Yes or No.", "Answer:", []string{"No", "Yes"})
			if err != nil {
				return 0, err
			}
			sum += shares[1]
		}
		return sum / float64(len(questions)), nil
	}
}

// ask shows the judge the problem, the solution so far and the step, and lets it continue after begin.
func ask(ctx context.Context, judge envs.Scorer, c envs.Completion, instruction, begin string, choices []string) ([]float64, error) {
	problem := strings.TrimSpace(strings.TrimSuffix(c.Observation.Text, solutionMark))
	if at := strings.LastIndex(problem, strings.TrimLeft(questionMark, "\n")); at >= 0 {
		problem = problem[at+len(strings.TrimLeft(questionMark, "\n")):]
	}
	if n := len(c.Observation.Messages); n > 0 {
		problem = c.Observation.Messages[n-1].Content
	}
	before := strings.TrimSuffix(c.Text, c.Action.Text)
	if strings.TrimSpace(before) == "" {
		before = "(nothing yet)"
	}
	prompt := envs.Observation{Messages: []envs.Message{
		{Role: envs.RoleSystem, Content: "You judge one step of the solution of a mathematics problem. " + instruction},
		{Role: envs.RoleUser, Content: "Problem:\n" + problem + "\n\nSolution so far:\n" + envs.Quoted(before) + "\n\nNext step:\n" + envs.Quoted(c.Action.Text)},
		{Role: envs.RoleAssistant, Content: begin},
	}}
	shares, err := judge.Choose(ctx, prompt, choices)
	if err != nil {
		return nil, fmt.Errorf("asking the judge: %w", err)
	}
	if len(shares) != len(choices) {
		return nil, fmt.Errorf("asking the judge: %d probabilities for %d choices", len(shares), len(choices))
	}
	return shares, nil
}
