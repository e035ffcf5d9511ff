package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// measure fills in the figures of a step, the input of the alarms, and its line.
func (t *Tokens) measure(step *rl.Step, r collection, at rl.At) error {
	m, all := step.Figures, slices.Concat(r.groups...)
	rewards := make([][]float64, len(r.groups))
	for i, g := range r.groups {
		rewards[i] = g.Rewards()
	}
	if err := t.measureAll(step, r, all, rewards); err != nil {
		return err
	}
	step.Health.Group, step.Health.Spread, step.Health.Tells = t.config.SamplesPerPrompt, spreads(r.scores), telling(all)
	m.Mean("frac_reward_zero_std", step.Health.ZeroStd, 1)
	if t.config.DynamicSampling {
		m.Total("dropped_prompts", float64(r.dropped))
	}
	for name, n := range t.config.Rewards.JudgeCount() {
		m.Total("judge/"+name, float64(n))
	}
	if t.config.ByDifficulty {
		m.Last("settled_prompts", float64(len(t.state.Settled))/float64(t.task.Len(envs.Train)))
	}
	if t.config.Async {
		oldest := at.Version
		for _, x := range step.Samples {
			oldest = min(oldest, x.Version)
		}
		m.Max("staleness", float64(at.Version-oldest))
	}
	step.Line = syncLine(infos(all), "")
	return nil
}

// measureAll fills in the figures of all that was played; rewards are those of each group.
func (t *Tokens) measureAll(step *rl.Step, r collection, all []*rl.Trajectory, rewards [][]float64) (err error) {
	m := step.Figures
	if step.Health, err = describe(m, t.sampler.Policy(), all, rewards); err != nil {
		return err
	}
	for _, x := range all {
		t.state.Tokens += int64(len(x.Tokens))
	}
	m.Last("num_tokens", float64(t.state.Tokens))
	rewardFigures(m, r.scores)
	m.Mean("time/generation", r.generation.Seconds(), 1)
	m.Mean("time/environment", r.environment.Seconds(), 1)
	return nil
}

func infos(all []*rl.Trajectory) []*envs.Info {
	list := make([]*envs.Info, len(all))
	for i, x := range all {
		list[i] = x.Info
	}
	return list
}

// outcomes are the last turns of the trajectories that have a reward.
func outcomes(p *policy.CausalLM, all []*rl.Trajectory) (list []rl.Outcome, err error) {
	shown := map[int]string{} // prompts of single turns by episode
	for _, x := range all {
		if len(x.Turns) == 0 || math.IsNaN(x.Reward()) {
			continue
		}
		from := 0
		if n := len(x.Turns); n > 1 {
			from = x.Turns[n-2].End
		}
		for from < len(x.Tokens) && x.Source[from] != rl.Sampled {
			from++
		}
		o := rl.Outcome{Reward: x.Reward()}
		if o.Text, err = p.Tokenizer.Decode(x.Tokens[from:], true); err != nil {
			return nil, err
		}
		var known bool
		if o.Prompt, known = shown[x.Prompt]; !known || len(x.Turns) > 1 {
			if o.Prompt, err = p.Tokenizer.Decode(x.Tokens[:from], true); err != nil {
				return nil, err
			}
			shown[x.Prompt] = o.Prompt
		}
		if x.Info != nil {
			o.Answer, o.Truth = x.Info.Answer, x.Info.Truth
		}
		list = append(list, o)
	}
	return list, nil
}

// describe measures trajectories; rewards are those of each group.
func describe(m rl.Meter, p *policy.CausalLM, all []*rl.Trajectory, rewards [][]float64) (*rl.Health, error) {
	seen, err := outcomes(p, all)
	if err != nil {
		return nil, err
	}
	rewarded := rl.CountRewarded(seen)
	m.Mean("completions/echo_ratio", float64(rewarded.Echoes), float64(rewarded.N))
	m.Mean("completions/same_ratio", float64(rewarded.Same), float64(rewarded.N))
	stats := rl.StatsOf(rewards)
	scores := rl.ScoreAnswers(infos(all))
	n := float64(len(all))
	if rewarded := n - float64(stats.Failed); rewarded > 0 {
		m.Mean("reward", stats.Mean*rewarded, rewarded)
		m.Mean("reward_std", stats.Std, 1)
		m.Mean("reward_stderr", stats.StdErr, 1)
	}
	m.Total("failed_rewards", float64(stats.Failed))
	if slices.ContainsFunc(all, func(x *rl.Trajectory) bool { return x.Info != nil }) { // the task has answers to compare with
		m.Mean("accuracy", float64(scores.Correct), n)
		if !scores.FreeForm {
			m.Mean("format_rate", scores.FormatRate*n, n)
		}
	}
	for kind, score := range scores.Kinds {
		m.Mean("accuracy/"+kind, float64(score.Correct), float64(score.N))
	}
	for kind, mean := range rewardsByKind(all) {
		m.Mean("reward/"+kind, mean, 1)
	}
	toolFigures(m, all)
	thinkingFigures(m, all)
	ended, tokens, segments := 0.0, 0, 0
	for _, x := range all {
		tokens += x.Len()
		segments += len(x.Segments)
		if x.Stop == envs.StopEnd || x.Stop == envs.StopString {
			ended++
		}
	}
	if segments > 0 {
		m.Mean("segments", n+float64(segments), n)
	}
	kinds := map[string]rl.AnswerCount{}
	for kind, score := range scores.Kinds {
		kinds[kind] = rl.AnswerCount{N: score.N, Right: score.Correct}
	}
	if len(kinds) == 0 && scores.Verified() {
		kinds[""] = rl.AnswerCount{N: scores.N, Right: scores.Correct}
	}
	return &rl.Health{
		Rewarded: rewarded, Kinds: kinds, Length: float64(tokens) / n,
		ZeroStd: stats.ZeroStd, Truncated: lengths(m, all), Ended: ended / n, Correct: scores.Accuracy,
		Formatted: scores.FormatRate, Tiers: scores.FoundBy, Failed: float64(stats.Failed) / n,
	}, nil
}

// toolFigures are the figures of tool calls.
func toolFigures(m rl.Meter, all []*rl.Trajectory) {
	var sum envs.ToolUse
	episodes := 0.0
	for _, x := range all {
		if x.Tools.Offered {
			episodes++
		}
		sum.Calls, sum.Failed, sum.Malformed = sum.Calls+x.Tools.Calls, sum.Failed+x.Tools.Failed, sum.Malformed+x.Tools.Malformed
	}
	if episodes == 0 {
		return
	}
	m.Mean("tools/call_frequency", float64(sum.Calls), episodes)
	if sum.Calls > 0 {
		m.Mean("tools/failure_frequency", float64(sum.Failed), float64(sum.Calls))
	}
	if tried := sum.Calls + sum.Malformed; tried > 0 {
		m.Mean("tools/parse_rate", float64(sum.Calls), float64(tried))
	}
}

// thinkingFigures are the figures of thoughts.
func thinkingFigures(m rl.Meter, all []*rl.Trajectory) {
	var sum envs.ThinkingUse
	for _, x := range all {
		sum.Tokens, sum.Thoughts, sum.Closed = sum.Tokens+x.Thinking.Tokens, sum.Thoughts+x.Thinking.Thoughts, sum.Closed+x.Thinking.Closed
	}
	if sum.Thoughts > 0 {
		m.Mean("thinking/mean_length", float64(sum.Tokens), float64(sum.Thoughts))
		m.Mean("thinking/closed_rate", float64(sum.Closed), float64(sum.Thoughts))
	}
}

// lengths measures the lengths of the completions, and returns the fraction that was cut off.
func lengths(m rl.Meter, all []*rl.Trajectory) (truncated float64) {
	add := func(name string, n []int) {
		if len(n) == 0 {
			return
		}
		sum := 0
		for _, length := range n {
			sum += length
		}
		m.Mean("completions/mean_"+name, float64(sum), float64(len(n)))
		m.Min("completions/min_"+name, float64(slices.Min(n)))
		m.Max("completions/max_"+name, float64(slices.Max(n)))
	}
	var whole, terminated []int
	for _, x := range all {
		whole = append(whole, x.Len())
		if x.Stop != envs.StopLength {
			terminated = append(terminated, x.Len())
		}
	}
	add("length", whole)
	add("terminated_length", terminated)
	cut := float64(len(all) - len(terminated))
	m.Mean("completions/clipped_ratio", cut, float64(len(all)))
	return cut / float64(len(all))
}

// rewardFigures are the figures of each reward.
func rewardFigures(m rl.Meter, scores reward.Scores) {
	for _, score := range scores.Rewards {
		sum, variance, n := momentsOf(score.Values)
		m.Mean("rewards/"+score.Name+"/mean", sum, n)
		if n > 1 {
			m.Mean("rewards/"+score.Name+"/std", math.Sqrt(variance*n/(n-1)), 1)
		}
		m.Total("rewards/"+score.Name+"/failures", float64(score.Failures))
	}
}

// spreads are the weighted standard deviations of the rewards.
func spreads(scores reward.Scores) map[string]float64 {
	all := map[string]float64{}
	for _, score := range scores.Rewards {
		if _, variance, n := momentsOf(score.Values); n > 0 {
			all[score.Name] = math.Abs(score.Weight) * math.Sqrt(variance)
		}
	}
	return all
}

// momentsOf are the sum, the population variance and the number of the values that are not NaN.
func momentsOf(values []float64) (sum, variance, n float64) {
	squares := 0.0
	for _, v := range values {
		if !math.IsNaN(v) {
			sum, squares, n = sum+v, squares+v*v, n+1
		}
	}
	return sum, max(0, squares-sum*sum/max(1, n)) / max(1, n), n
}

// telling are the rewards that are higher for every correct answer than for any wrong one; none unless there are both.
func telling(all []*rl.Trajectory) (names []string) {
	least, most := map[string]float64{}, map[string]float64{} // of correct answers, of wrong ones
	for _, x := range all {
		for _, part := range x.Parts {
			v := float64(part.Value)
			if x.Info == nil || math.IsNaN(v) {
				continue
			}
			if old, ok := least[part.Name]; x.Info.Correct && (!ok || v < old) {
				least[part.Name] = v
			}
			if old, ok := most[part.Name]; !x.Info.Correct && (!ok || v > old) {
				most[part.Name] = v
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		if wrong, ok := most[name]; ok && least[name] > wrong {
			names = append(names, name)
		}
	}
	return names
}

// syncLine is the line of a step with more figures in it. Without reference answers nothing is correct or formatted.
func syncLine(all []*envs.Info, more string) func(m rl.Meter) string {
	scores := rl.ScoreAnswers(all)
	return func(m rl.Meter) string {
		milliseconds := func(a, b string) int64 { return int64(1000 * (m.Get("time/"+a) + m.Get("time/"+b))) }
		verdicts := ""
		if slices.ContainsFunc(all, func(i *envs.Info) bool { return i != nil }) {
			verdicts = fmt.Sprintf("%d/%d correct ", scores.Correct, scores.N)
			if !scores.FreeForm {
				verdicts += fmt.Sprintf("%.0f/%d formatted ", scores.FormatRate*float64(scores.N), scores.N)
			}
		}
		return fmt.Sprintf("[SYNC %2.0f] %sloss=%.4f reward=%.3f %sgen=%dms train=%dms version=%.0f",
			m.Get("step"), verdicts, m.Get("loss"), m.Get("reward"), more,
			milliseconds("generation", "environment"), milliseconds("logprobs", "update"), m.Get("policy_version"))
	}
}

// failures are the episodes of a step that failed or whose prompt is too long.
type failures struct {
	n, timeouts, tooLong int
	first                error
}

func (f *failures) add(episode, sample int, err error) {
	if f.n++; f.n == 1 {
		f.first = fmt.Errorf("episode %d, sample %d: %w", episode, sample, err)
	}
	if errors.Is(err, within.ErrTimeout) {
		f.timeouts++
	}
	if errors.Is(err, ErrTooLong) {
		f.tooLong++
	}
}

// report adds the failures to the figures and the notes of a step, counted from 0. It is an error if no prompt fits the
// model.
func (f *failures) report(step *rl.Step, number int, groups []rl.Group) error {
	step.Figures.Total("failed_episodes", float64(f.n))
	step.Figures.Total("timeouts", float64(f.timeouts))
	if f.n == 0 {
		return nil
	}
	begun := func(g rl.Group) bool {
		return slices.ContainsFunc(g, func(x *rl.Trajectory) bool { return len(x.Tokens) > 0 })
	}
	if f.tooLong == f.n && !slices.ContainsFunc(groups, begun) {
		return fmt.Errorf("no prompt of step %d fits the model; shorten the prompts or put fewer examples in them (few_shot); the first: %w", number+1, f.first)
	}
	step.Notes = append(step.Notes, fmt.Sprintf("warning: %d episodes of step %d failed and are dropped, %d of them because of the timeout; the first: %v", f.n, number+1, f.timeouts, f.first))
	return nil
}

// Evaluate plays n episodes of the evaluation part once each, starting with from, and scores the answers. It plays fewer if
// the part has fewer. c.Rewards score only tasks that are envs.Open; the rewards of those that are envs.Scoring are their own.
func Evaluate(ctx context.Context, sampler Generator, task envs.Task, from, n int, c Config) (rl.AnswerScores, error) {
	if most := task.Len(envs.Eval); most > 0 {
		n = max(0, min(n, most-from))
	}
	indices := upFrom(from, n)
	c.Samples = 1
	if _, open := task.(envs.Open); !open {
		c.Rewards = nil
	}
	var failed error // without c.Failed
	unverified, failedBefore := map[int]bool{}, c.Failed
	c.Failed = func(episode, sample int, err error) {
		switch {
		case errors.Is(err, envs.ErrNotScored):
			unverified[episode] = true
		case failedBefore != nil:
			failedBefore(episode, sample, err)
		default:
			failed = cmp.Or(failed, err)
		}
	}
	played, err := Play(ctx, sampler, task, envs.Eval, indices, c)
	if err := cmp.Or(err, failed); err != nil {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: %w", err)
	}
	var infos []*envs.Info
	for i, g := range played.Groups {
		if !unverified[indices[i]] {
			infos = append(infos, g[0].Info)
		}
	}
	if len(infos) == 0 && n > 0 {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: none of %d answers could be verified", n)
	}
	scores := rl.ScoreAnswers(infos)
	if own, ok := task.(envs.Scoring); c.Rewards != nil || ok && own.MeanReward() {
		mean, standardError, err := meanReward(played)
		if err != nil {
			return scores, fmt.Errorf("evaluating: %w", err)
		}
		scores.Reward, scores.RewardError = &mean, standardError
		for kind, mean := range rewardsByKind(slices.Concat(played.Groups...)) {
			score := scores.Kinds[kind]
			score.Reward = &mean
			scores.Kinds[kind] = score
		}
		if n := accepted(played); scores.Verified() && n >= 0 {
			scores.Accepted = &n
		}
	}
	return scores, nil
}

// rewardsByKind are the mean rewards of the kinds of episodes, if the task has kinds.
func rewardsByKind(all []*rl.Trajectory) map[string]float64 {
	rewards, means := map[string][]float64{}, map[string]float64{}
	for _, x := range all {
		if x.Info != nil && x.Info.Kind != "" {
			rewards[x.Info.Kind] = append(rewards[x.Info.Kind], x.Reward())
		}
	}
	for kind, values := range rewards {
		if sum, _, n := momentsOf(values); n > 0 {
			means[kind] = sum / n
		}
	}
	return means
}

// meanReward is over the episodes that have a reward, with its standard error.
func meanReward(p Played) (mean, standardError float64, err error) {
	var rewards []float64
	for _, g := range p.Groups {
		rewards = append(rewards, g.Rewards()...)
	}
	sum, variance, n := momentsOf(rewards)
	if n == 0 {
		return 0, 0, cmp.Or(p.Scores.AllFailed(), errors.New("no episode has a reward"))
	}
	return sum / n, math.Sqrt(variance / n), nil
}

// accepted counts the completions with the higher of two rewards; −1 if there are more than two rewards. If there is one, it
// accepts if it is above 0.
func accepted(p Played) (n int) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, g := range p.Groups {
		if reward := g[0].Reward(); !math.IsNaN(reward) {
			least, most = min(least, reward), max(most, reward)
		}
	}
	for _, g := range p.Groups {
		switch reward := g[0].Reward(); {
		case math.IsNaN(reward), reward == least && (least < most || most <= 0):
		case reward != most:
			return -1
		default:
			n++
		}
	}
	return n
}

// Greedy is c with the most likely tokens instead of sampled ones.
func (c Config) Greedy() Config {
	c.Sampling = torch.Sampling{RepetitionPenalty: c.Sampling.RepetitionPenalty}
	return c
}
