package train

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

// Replay judges the answers that the run in dir has kept again, by the rewards that c says, and makes advantages of what
// they earn as its algorithm does. Advantages are NaN where the algorithm gives none, or needs what was not kept.
func Replay(ctx context.Context, c *config.Config, dir string, kept []rl.Record, client *hub.Client, console *report.Console) ([]rl.Record, error) {
	t := &trainer{config: c, console: console, hub: client}
	if c.RL == nil {
		return nil, fmt.Errorf("%s is the run of a supervised stage: it has no rewards", dir)
	}
	again := slices.Clone(kept)
	judge := t.replayText
	if c.Labels != nil {
		judge = t.replayLabels
	}
	if err := judge(ctx, dir, again); err != nil {
		return nil, err
	}
	if c.Replay != nil {
		return again, nil // turns go into a buffer, and what is drawn from there is learnt from
	}
	return again, t.advantages(kept, again)
}

// replayText plays the kept actions to the task once more.
func (t *trainer) replayText(ctx context.Context, dir string, records []rl.Record) error {
	p, err := policy.ReadCausalLM(dir)
	if err != nil {
		return err
	}
	defer p.Close()
	task, err := t.taskFor(ctx, p)
	if err != nil {
		return err
	}
	defer closeTask(task)
	if _, _, err := t.filterPrompts(ctx, p, task); err != nil {
		return err
	}
	rewards, done, err := t.rewards(ctx)
	if err != nil {
		return err
	}
	defer done()
	var turns []envs.Completion
	var of []int // the record of each turn
	for i := range records {
		r := &records[i]
		r.Reward, r.Each = 0, nil
		found, err := replayed(ctx, task, r)
		if err != nil {
			return fmt.Errorf("step %d, prompt %d, sample %d: %w", r.Step, r.Prompt, r.Sample, err)
		}
		for _, turn := range found {
			if rewards == nil {
				r.Reward += rl.Number(turn.Reward)
			}
			turns, of = append(turns, turn), append(of, i)
		}
	}
	if rewards == nil {
		return nil
	}
	scores, err := rewards.Score(ctx, turns, 1)
	if err != nil {
		return err
	}
	for n, i := range of {
		records[i].Reward += rl.Number(scores.Total[n])
		pay(&records[i], scores, n)
	}
	return scores.AllFailed()
}

// pay adds what each reward gave turn n.
func pay(r *rl.Record, scores reward.Scores, n int) {
	for k, one := range scores.Rewards {
		if k == len(r.Each) {
			r.Each = append(r.Each, rl.RecordedValue{Name: one.Name})
		}
		r.Each[k].Value += rl.Number(one.Values[n])
	}
}

// replayed are the turns of one answer, and into r goes how it is judged.
func replayed(ctx context.Context, task envs.Task, r *rl.Record) (turns []envs.Completion, err error) {
	env, shown, err := envs.Begin(ctx, task, envs.Train, r.Prompt)
	if err != nil {
		return nil, err
	}
	defer envs.Close(env)
	actions := r.Actions
	if actions == nil {
		actions = []string{r.Written}
	}
	var written strings.Builder
	for i, text := range actions {
		stop := envs.StopReason(r.Stop)
		if i < len(actions)-1 {
			stop = envs.StopEnd
			if slices.ContainsFunc(shown.Stop, func(stop string) bool { return strings.HasSuffix(text, stop) }) {
				stop = envs.StopString
			}
		}
		action, thought, _ := envs.NewAction(text, stop, i == 0 && envs.OpensThought(r.Shown))
		step, err := env.Step(ctx, action)
		if err != nil {
			return nil, err
		}
		kept := text[:min(thought+step.Keep, len(text))]
		written.WriteString(kept)
		if step.Info != nil {
			r.Correct, r.Form, r.Tier, r.Kind = step.Info.Correct, step.Info.FormatOK, step.Info.FoundBy, step.Info.Kind
		}
		if step.Done || !step.Continues {
			turns = append(turns, envs.Completion{Observation: shown, Text: written.String(), Generated: kept, Action: action, Info: step.Info, Reward: step.Reward, Said: step.Said, Tools: step.Tools})
		}
		if step.Done {
			return turns, nil
		}
		written.WriteString(step.Added())
	}
	return turns, nil
}

// replayLabels judges the kept choices of a classifier.
func (t *trainer) replayLabels(ctx context.Context, dir string, records []rl.Record) error {
	folder, err := policy.ReadClassifier(dir)
	if err != nil {
		return err
	}
	rewards, done, err := (&labelRun{trainer: t}).labelRewards(ctx, folder.Labels)
	if err != nil {
		return err
	}
	defer done()
	if rewards.ReadsProbs() {
		return fmt.Errorf("the rewards %s read the policy's probabilities, which are not kept", strings.Join(rewards.Names(), ","))
	}
	var choices []reward.Choice
	for _, r := range records {
		choice := reward.Choice{Action: slices.Index(folder.Labels, r.Written), Truth: slices.Index(folder.Labels, r.Truth), Text: r.Shown}
		if choice.Action < 0 || choice.Truth < 0 {
			return fmt.Errorf("step %d, row %d: %q or %q is no label of %s", r.Step, r.Prompt, r.Written, r.Truth, dir)
		}
		choices = append(choices, choice)
	}
	scores, err := rewards.Score(ctx, choices)
	if err != nil {
		return err
	}
	for i := range records {
		records[i].Reward, records[i].Each = rl.Number(scores.Total[i]), nil
		pay(&records[i], scores, i)
	}
	return scores.AllFailed()
}

// advantages are what the algorithm makes of the rewards of again, step by step.
func (t *trainer) advantages(kept, again []rl.Record) error {
	for from := 0; from < len(again); {
		to := from
		for to < len(again) && again[to].Step == again[from].Step {
			to++
		}
		if err := t.stepAdvantages(kept[from:to], again[from:to]); err != nil {
			return fmt.Errorf("step %d: %w", again[from].Step, err)
		}
		from = to
	}
	return nil
}

func (t *trainer) stepAdvantages(kept, again []rl.Record) error {
	needs := t.config.Learning.Needs()
	step := &rl.Step{Figures: rl.Meter{}}
	samples := make([]*rl.Sample, len(again))
	for i := range again {
		r := &again[i]
		x := sampleOf(kept[i], *r)
		samples[i] = x
		if needs.Values && len(x.Value) != x.Len() {
			return nil // not kept
		}
		x.Episode = i
		if i == 0 || again[i-1].Prompt != r.Prompt || t.config.Labels != nil {
			step.Groups = append(step.Groups, nil)
			if r.Greedy != nil {
				step.Greedy = append(step.Greedy, float64(*r.Greedy))
			}
		}
		last := len(step.Groups) - 1
		step.Groups[last] = append(step.Groups[last], x)
		if x.HasReward() && !math.IsNaN(float64(kept[i].Advantage)) {
			step.Samples = append(step.Samples, x)
		}
	}
	if err := t.config.Learning.Prepare(step); err != nil {
		return err
	}
	for i, x := range samples {
		again[i].Advantage, again[i].PerToken = rl.Number(math.NaN()), nil
		if slices.Contains(step.Samples, x) {
			again[i].Learnt(x)
		}
	}
	return nil
}

// sampleOf is an answer as an algorithm sees it: kept has what it earned then, again what it earns now.
func sampleOf(kept, again rl.Record) *rl.Sample {
	n := max(1, len(again.Tokens))
	x := &rl.Sample{Prompt: again.Prompt, Index: again.Sample, Actions: make([]int32, n), Rewards: make([]float64, n), Overlong: again.Overlong}
	x.Rewards[n-1] = float64(again.Reward)
	if len(kept.PerAction) == n && kept.Reward == again.Reward {
		for i, v := range kept.PerAction {
			x.Rewards[i] = float64(v)
		}
	}
	for _, v := range again.Value {
		x.Value = append(x.Value, float32(v))
	}
	for _, v := range again.Penalty {
		x.Penalty = append(x.Penalty, float64(v))
	}
	return x
}

// comparesAll says whether the advantages of an algorithm compare all answers of a step, of which a part may have been kept.
func comparesAll(a algo.Algorithm, values map[string]any) bool {
	return a.Needs().Values && values["whiten_advantages"] == true || values["advantage_scale"] == "batch" || values["baseline"] == "batch" || values["baseline"] == "moving"
}

// WhyOther says why advantages may differ though the rewards do not, "" where they should not.
func WhyOther(c *config.Config) string {
	switch {
	case c.RL == nil || c.Replay != nil || c.Learning == nil:
		return ""
	case comparesAll(c.Learning, c.Effective()) && c.Saving.Completions >= 0:
		return "its advantages compare all answers of a step, of which a part was kept: --keep-completions -1 keeps all"
	case c.Fresh != nil && c.Fresh.Async:
		return "with --async an advantage is weighed by what the policy thought of the answer, which is not kept"
	}
	return ""
}
