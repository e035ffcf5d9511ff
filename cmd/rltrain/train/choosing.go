package train

import (
	"context"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// What language models need that write one of a few answers.

// choicesFit refuses answers that are longer than the policy may write.
func (t *trainer) choicesFit(p *policy.CausalLM, task envs.Task) error {
	choosing, ok := task.(envs.Choosing)
	if !ok {
		return nil
	}
	for _, choice := range choosing.Choices() {
		ids, err := p.Tokenizer.EncodeRaw(" "+choice, false)
		if err != nil {
			return err
		}
		if most := t.config.Answers.MaxNewTokens; len(ids) > most {
			return t.config.Errorf("max_new_tokens", "%d: the label %q has %d tokens and could never be written; raise it to at least %d", most, choice, len(ids), len(ids)+1)
		}
	}
	return nil
}

// showPrompt prints the first prompt that is learnt from, as the policy reads it.
func (t *trainer) showPrompt(ctx context.Context, stage *run.Stage, p *policy.CausalLM, task envs.Task) error {
	if _, ok := task.(envs.Choosing); !ok || stage.Resumed() {
		return nil
	}
	episode, err := task.Episode(envs.Train, 0)
	if err != nil {
		return err
	}
	shown, err := episode.Reset(ctx)
	if err != nil {
		return err
	}
	ids, err := p.Observe(shown)
	if err != nil {
		return err
	}
	text, err := p.Tokenizer.Decode(ids, false)
	if err != nil {
		return err
	}
	return stage.Printf(firstPrompt, len(ids), text)
}

// firstPrompt says how long a prompt is, and what it is.
const firstPrompt = "The first prompt, %d tokens:\n%s"

// drawWriting draws the training of a policy that writes labels, beside the most frequent label of the held-out rows.
func (t *trainer) drawWriting(ctx context.Context, stage *run.Stage, task envs.Task) error {
	counts, most, n := map[string]int{}, 0, min(task.Len(envs.Eval), t.config.Answers.EvalSamples)
	for i := range n {
		episode, err := task.Episode(envs.Eval, i)
		if err != nil {
			return err
		}
		if worked, ok := episode.(envs.Demonstrator); ok {
			counts[worked.Solution()]++
			most = max(most, counts[worked.Solution()])
		}
	}
	return drawTraining(stage, float64(most)/float64(max(1, n)))
}
