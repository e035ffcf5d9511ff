package policy

import (
	"sync"

	template "github.com/rltrain/rltrain/torch/transformers/chat"
)

// drops is what a template leaves out of conversations with tools.
type drops struct{ calls, results bool }

// probed remembers the drops of a template for inputs.
type probed struct {
	lock     sync.Mutex
	template *template.Templates
	known    map[string]drops // by inputs
}

// mostProbed bounds the inputs that are remembered.
const mostProbed = 1024
