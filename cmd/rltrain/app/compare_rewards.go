package app

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// rewardFlags are the flags of compare for preference tasks.
func rewardFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "reward", Usage: "preferences: rewards of the responses, as in training: model:DIR, rubric:FILE, expr:'...' or cmd:PROGRAM, each with an optional =WEIGHT, comma-separated"},
		&cli.StringFlag{Name: "judge", Usage: "preferences: language model that scores by the rubric"},
	}
}

// rewardComparison compares two language models by the rewards of their responses to the same prompts.
type rewardComparison struct {
	A       string        `json:"a"`
	B       string        `json:"b"`
	Reward  string        `json:"reward"`
	Prompts int           `json:"prompts"` // with rewards for both models
	TooLong int           `json:"too_long"`
	Failed  int           `json:"failed"`            // prompts whose reward failed
	Failure string        `json:"failure,omitempty"` // first error
	Mean    rl.Difference `json:"mean_reward"`
	Wins    rl.Estimate   `json:"wins"` // fraction of prompts where B scores higher; ties count half
}

// String returns the table that compare prints.
func (r rewardComparison) String() string {
	text := fmt.Sprintf("prompts=%s reward=%s\nA: %s\nB: %s\n", report.Count(int64(r.Prompts)), r.Reward, r.A, r.B)
	if r.TooLong > 0 {
		text += fmt.Sprintf("warning: skipped %d prompts that leave no room for a response\n", r.TooLong)
	}
	if r.Failed > 0 {
		text += fmt.Sprintf("warning: skipped %d prompts whose reward failed; first error: %s\n", r.Failed, r.Failure)
	}
	text += "\n" + report.RenderTable([]string{"metric", "A", "B", "B - A", "95 % CI"}, [][]string{report.DifferenceRow("mean reward", r.Mean)})
	return text + fmt.Sprintf("\nwin rate of B: %.1f %% (95 %% CI %.1f–%.1f; ties count half)\n", 100*r.Wins.Value, 100*r.Wins.Interval[0], 100*r.Wins.Interval[1])
}

// rewardRun says how responses are sampled and scored.
type rewardRun struct {
	options policy.GenerateOptions
	spec    string
}

func newRewardRun(c *cli.Context) (run rewardRun, err error) {
	run.spec = c.String("reward")
	if run.spec == "" || c.String("dataset") == "" {
		return run, shared.UsageErrorf("compare --task %s needs --dataset FILE with prompts, and --reward", c.String("task"))
	}
	var o samplingOptions
	if err := settingsOf(c, "max-new-tokens", "seed").Set(&o); err != nil {
		return run, usageFault(err)
	}
	run.options = policy.GenerateOptions{MaxNew: o.MaxNew, Seed: o.Seed}
	run.options.Samples, run.options.Sampling, err = samplingOf(c)
	return run, err
}

// compareRewards scores the responses of two language models to the same prompts.
func compareRewards(c *cli.Context) error {
	names := []string{"task", "dataset", "output", "max-samples", "max-new-tokens", "seed", "n", "temperature", "top-p"}
	if err := onlyFlags(c, "to task "+c.String("task"), names, languageModelFlags(), rewardFlags()); err != nil {
		return err
	}
	if err := rejectModelFlags(c); err != nil {
		return err
	}
	run, err := newRewardRun(c)
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) { return run.compare(ctx, c) })
}

func (run rewardRun) compare(ctx context.Context, c *cli.Context) (r rewardComparison, err error) {
	r = rewardComparison{A: c.Args().Get(0), B: c.Args().Get(1), Reward: run.spec}
	client, done := shared.HubOf(c)
	defer done()
	models := shared.NewModels(ctx, client)
	defer models.Close()
	list, err := reward.ParseText(run.spec, nil, reward.Options{NoTruth: true, Judge: models, Critic: models.Critic})
	if err != nil {
		return r, shared.UsageErrorf("--reward: %v", err)
	}
	defer list.Close()
	switch judge, asks := c.String("judge"), list.Judged(); {
	case asks != "" && judge == "":
		return r, shared.UsageErrorf("--reward: %s needs a language model; pass --judge DIR", asks)
	case asks == "" && judge != "":
		return r, shared.UsageErrorf("--judge: no reward of %s uses a judge", run.spec)
	case judge != "":
		if err := models.OpenJudge(judge, ""); err != nil {
			return r, shared.UsageErrorf("--judge: %v", err)
		}
	}
	prompts, err := promptsOf(ctx, c)
	if err != nil {
		return r, err
	}
	var answers [2][][]envs.Completion
	for i, model := range []string{r.A, r.B} {
		if answers[i], err = run.answer(ctx, c, model, prompts); err != nil {
			return r, err
		}
	}
	var earned [2][]float64
	var wins []float64
	for i := range prompts {
		if answers[0][i] == nil || answers[1][i] == nil {
			r.TooLong++
			continue
		}
		var means [2]float64
		failure := ""
		for side := range means {
			scores, err := list.Score(ctx, answers[side][i], 1)
			if err != nil {
				return r, err
			}
			if means[side], err = meanOf(scores); err != nil && failure == "" {
				failure = fmt.Sprintf("prompt %d: %v", i+1, err)
			}
		}
		if failure != "" {
			if r.Failed++; r.Failure == "" {
				r.Failure = failure
			}
			continue
		}
		earned[0], earned[1] = append(earned[0], means[0]), append(earned[1], means[1])
		wins = append(wins, map[bool]float64{true: 1}[means[1] > means[0]]+map[bool]float64{true: 0.5}[means[1] == means[0]])
	}
	if r.Prompts = len(wins); r.Prompts == 0 {
		return r, fmt.Errorf("no prompt has rewards for both models: of %d prompts, %d leave no room for a response and %d rewards failed; first error: %s", len(prompts), r.TooLong, r.Failed, r.Failure)
	}
	r.Mean, r.Wins = rl.CompareMeans(earned[0], earned[1]), rl.RateEstimate(wins)
	return r, nil
}

// meanOf returns the mean total reward, or the first failure.
func meanOf(scores reward.Scores) (float64, error) {
	sum := 0.0
	for _, one := range scores.Rewards {
		if one.Failures > 0 {
			return 0, fmt.Errorf("%s: %s", one.Name, one.Failure)
		}
	}
	for _, total := range scores.Total {
		sum += total
	}
	return sum / float64(len(scores.Total)), nil
}

// promptsOf reads the prompts of --dataset and ignores responses.
func promptsOf(ctx context.Context, c *cli.Context) ([]chat.Example, error) {
	rows, err := preferenceRows(ctx, c, c.String("dataset"), chat.PromptOnly, chat.Preference, chat.Unpaired)
	if err != nil {
		return nil, err
	}
	var prompts []chat.Example
	for e, err := range rows {
		if err != nil {
			return nil, err
		}
		if prompts = append(prompts, e); len(prompts) == c.Int("max-samples") {
			break
		}
	}
	if len(prompts) == 0 {
		return nil, fmt.Errorf("--dataset: %s has no prompts", c.String("dataset"))
	}
	return prompts, nil
}

// answer samples a model's responses to prompts; nil for prompts that leave no room.
func (run rewardRun) answer(ctx context.Context, c *cli.Context, model string, prompts []chat.Example) ([][]envs.Completion, error) {
	answers, o := make([][]envs.Completion, len(prompts)), run.options
	err := withSampler(c, model, "", evalSlots, func(sampler *policy.Sampler) error {
		var asked [][]int32
		var of []int
		p := sampler.Policy()
		for i, prompt := range prompts {
			ids, err := p.EncodePrompt(prompt)
			if err != nil {
				return fmt.Errorf("%s, prompt %d: %w", model, i+1, err)
			}
			if len(ids) > 0 && len(ids)+o.MaxNew <= p.MaxLength() {
				asked, of, o.Streams = append(asked, ids), append(of, i), append(o.Streams, uint64(i))
			}
		}
		return sampler.Generate(ctx, asked, o, func(at int, completions []policy.Completion) error {
			i := of[at]
			for _, written := range completions {
				answers[i] = append(answers[i], envs.Completion{Observation: shownOf(prompts[i]), Text: written.Text, Action: envs.Action{Text: written.Text, Stop: envs.StopEnd}})
			}
			return nil
		})
	})
	return answers, err
}

// shownOf converts a prompt to an observation.
func shownOf(prompt chat.Example) envs.Observation {
	o := envs.Observation{Text: prompt.Prompt.Text, TemplateInputs: prompt.TemplateInputs}
	if prompt.Prompt.Conversational() {
		o.Messages = chat.Said(prompt.Prompt.Messages)
	}
	return o
}
