package algo

import (
	"fmt"

	"rltrain/torch"
	"rltrain/torch/transformers"
)

// addValueHead gives the policy a value head: that of its folder, or zeros. One that is there stays.
func (p *TokenPolicy) addValueHead() error {
	if p.value != nil {
		return nil
	}
	width := int64(p.model.Config.Decoder().HiddenSize)
	weight, bias, err := readValueHead(p.dir, width)
	if err != nil {
		return fmt.Errorf("value head: %w", err)
	}
	head := &transformers.Dense{}
	if head.Weight, err = torch.Parameter(weight, 1, width); err != nil {
		return fmt.Errorf("value head: %w", err)
	}
	if head.Bias, err = torch.Parameter(bias, 1); err != nil {
		head.Weight.Close()
		return fmt.Errorf("value head: %w", err)
	}
	p.value = head
	return nil
}

func (p *TokenPolicy) valueParams() []*torch.Var {
	if p.value == nil {
		return nil
	}
	return []*torch.Var{p.value.Weight, p.value.Bias}
}

// values is V of the states hidden [M, H], [M]. It reads them without sending its gradient back: the first
// errors of a head that starts at zero would otherwise drown the policy's.
func (p *TokenPolicy) values(s *torch.Scope, hidden torch.Tensor) torch.Tensor {
	return s.Squeeze(s.Linear(s.Detach(hidden), p.value.Weight.T(), p.value.Bias.T()))
}

func (p *TokenPolicy) saveValueHead(dir string) error {
	if p.value == nil {
		return nil
	}
	return writeValueHead(dir, *p.value)
}

// loadValueHead puts back what saveValueHead wrote.
func (p *TokenPolicy) loadValueHead(dir string) error {
	if p.value == nil {
		return nil
	}
	weight, bias, err := readValueHead(dir, int64(p.model.Config.Decoder().HiddenSize))
	if err != nil {
		return err
	}
	if err := p.value.Weight.Write(weight); err != nil {
		return fmt.Errorf("%s: value head: %w", dir, err)
	}
	return p.value.Bias.Write(bias)
}
