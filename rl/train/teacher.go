package train

import (
	"errors"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// teach evaluates the teacher on a part, as it reads it.
func (r *passes) teach(s *torch.Scope, part []*rl.Sample, b *rl.Batch) policy.Output {
	if r.needs.Context.Used() {
		b = rl.NewTeacherBatch(part)
	}
	return r.config.Teacher.Forward(s, b, policy.Pass{Temperature: r.config.Temperature})
}

// takeTeacher makes the policy its own teacher, if the algorithm wants it: its current weights, or a copy of it with the weights of a
// checkpoint (nil = as they are now).
func (r *passes) takeTeacher(weights run.Snapshot) error {
	if r.needs.Teacher != algo.TeacherSelf {
		return nil
	}
	if r.needs.Self.Kind == algo.TeacherLive {
		r.config.Teacher = r.policy
		return nil
	}
	p, ok := r.policy.(interface {
		Copy() (*policy.CausalLM, error)
	})
	if !ok {
		return errors.New("teacher self needs a language model in this process, or teacher_model_kind live")
	}
	teacher, err := p.Copy()
	if err != nil {
		return err
	}
	r.copied, r.config.Teacher = teacher, teacher
	if weights != nil {
		return weights.PutBack(teacher)
	}
	return nil
}

// renewTeacher moves the moving average to the policy if that is due.
func (r *passes) renewTeacher() error {
	c := r.needs.Self
	if r.copied == nil || c.Kind == algo.TeacherBase || r.state.Step%max(1, c.Every) != 0 {
		return nil
	}
	was, err := run.TakeSnapshot(r.copied)
	if err != nil {
		return err
	}
	now, err := run.TakeSnapshot(r.policy)
	if err != nil {
		return err
	}
	mix(now, was, float32(c.Rate))
	return now.PutBack(r.copied)
}
