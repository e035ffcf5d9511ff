// Package dist implements data-parallel training. Launchers such as torchrun, srun or Kubernetes start the processes and
// set environment variables; c10d process groups exchange tensors. Each process, a rank, plays part of the episodes and
// computes the gradient of part of every minibatch. They exchange both, so that all ranks have the same samples and weights.
package dist

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Place is the position of a process in its group.
type Place struct {
	Rank, Size int
	LocalSize  int    // ranks on this machine; 0 = unknown
	Host       string // rendezvous address
	Port       int
	Served     bool   // the launcher serves the store; else rank 0 does
	Attempt    string // restart count of the launcher
	InCluster  bool   // a pod of Kubernetes
}

// environment reads numbers from environment variables.
type environment struct {
	values map[string]string
	err    error
}

// number returns a variable as a number from low to high; given is false if it is not set.
func (e *environment) number(name string, low, high int) (n int, given bool) {
	text, given := e.values[name]
	if !given {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	if (err != nil || n < low || n > high) && e.err == nil {
		e.err = fmt.Errorf("environment variable %s is %q: want a number from %d to %d", name, text, low, high)
	}
	return n, true
}

// need returns a number that must be set because another variable is.
func (e *environment) need(name, because string, low, high int) int {
	n, given := e.number(name, low, high)
	if !given && e.err == nil {
		e.err = fmt.Errorf("environment variable %s is set, but %s is not; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset %s to train with one process", because, name, because)
	}
	return n
}

const (
	mostRanks = 4096
	mostPort  = 65535
)

// FromEnvironment reads the place from the variables of torchrun (also used by Kubeflow's PyTorchJob), of Kubeflow's
// Trainer (PET_*), or of Slurm's srun. It returns nil for a single process.
func FromEnvironment(environ []string) (*Place, error) {
	e := &environment{values: map[string]string{}}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			e.values[name] = value
		}
	}
	has := func(name string) bool { return e.values[name] != "" }
	var p *Place
	switch {
	case has("RANK") || has("WORLD_SIZE"):
		p = e.torchrun()
	case has("PET_NNODES") || has("PET_NODE_RANK"):
		p = e.pet()
	case has("SLURM_STEP_ID") && has("SLURM_PROCID"):
		p = e.slurm()
	default:
		return nil, nil
	}
	if e.err != nil {
		return nil, e.err
	}
	if p.Rank >= p.Size {
		return nil, fmt.Errorf("rank %d is out of range; %d processes have ranks from 0", p.Rank, p.Size)
	}
	if p.Size == 1 {
		return nil, nil
	}
	p.InCluster = has("KUBERNETES_SERVICE_HOST")
	return p, nil
}

// torchrun reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
func (e *environment) torchrun() *Place {
	p := &Place{}
	p.Size = e.need("WORLD_SIZE", "RANK", 1, mostRanks)
	p.Rank = e.need("RANK", "WORLD_SIZE", 0, mostRanks)
	p.LocalSize, _ = e.number("LOCAL_WORLD_SIZE", 1, mostRanks)
	if p.Size > 1 {
		e.master(p, "", "WORLD_SIZE")
	}
	p.Served = e.values["TORCHELASTIC_USE_AGENT_STORE"] == "True"
	p.Attempt = e.values["TORCHELASTIC_RESTART_COUNT"]
	return p
}

// master reads the rendezvous address from variables whose names begin with prefix.
func (e *environment) master(p *Place, prefix, because string) {
	if p.Host = e.values[prefix+"MASTER_ADDR"]; p.Host == "" && e.err == nil {
		e.err = fmt.Errorf("environment variable %s is set, but %sMASTER_ADDR is not; set it to the machine of rank 0", because, prefix)
	}
	p.Port = e.need(prefix+"MASTER_PORT", because, 1, mostPort)
}

// pet reads the PET_* variables, which Kubeflow's Trainer sets in each pod. A pod with one process needs no launcher.
func (e *environment) pet() *Place {
	p := &Place{}
	p.Size = e.need("PET_NNODES", "PET_NODE_RANK", 1, mostRanks)
	p.Rank = e.need("PET_NODE_RANK", "PET_NNODES", 0, mostRanks)
	if each := e.values["PET_NPROC_PER_NODE"]; each != "" && each != "1" && e.err == nil {
		e.err = fmt.Errorf("environment variable PET_NPROC_PER_NODE is %q, but this is one process; start several per pod with torchrun --no-python", each)
	}
	if p.Size > 1 {
		e.master(p, "PET_", "PET_NNODES")
	}
	return p
}

// slurmPorts are the rendezvous ports of Slurm jobs: the first port and their number.
const slurmPorts, slurmPortCount = 20000, 20000

// slurm reads the variables that srun sets for each task.
func (e *environment) slurm() *Place {
	p := &Place{}
	p.Rank = e.need("SLURM_PROCID", "SLURM_STEP_ID", 0, mostRanks)
	p.Size = e.need("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", 1, mostRanks)
	p.LocalSize = slurmLocal(e.values["SLURM_STEP_TASKS_PER_NODE"])
	if p.Size == 1 {
		return p
	}
	if e.values["MASTER_ADDR"] != "" || e.values["MASTER_PORT"] != "" {
		e.master(p, "", "SLURM_PROCID")
		return p
	}
	nodes := e.values["SLURM_STEP_NODELIST"]
	if p.Host = firstHost(nodes); p.Host == "" && e.err == nil {
		e.err = fmt.Errorf("environment variable SLURM_STEP_NODELIST is %q, which names no host; set MASTER_ADDR and MASTER_PORT", nodes)
	}
	job := e.need("SLURM_JOB_ID", "SLURM_PROCID", 0, 1<<40)
	p.Port = slurmPorts + job%slurmPortCount
	return p
}

// slurmLocal returns the tasks per node from "2(x3),1", or 0 if nodes differ.
func slurmLocal(text string) int {
	count, _, _ := strings.Cut(text, "(")
	n, err := strconv.Atoi(count)
	if err != nil || strings.Contains(text, ",") {
		return 0
	}
	return n
}

// firstHost returns the first host of a Slurm node list: gpu003 of "gpu[003-007,9],login1".
func firstHost(list string) string {
	prefix, rest, ranges := strings.Cut(list, "[")
	if host, _, more := strings.Cut(prefix, ","); more || !ranges {
		return host
	}
	inside, after, closed := strings.Cut(rest, "]")
	if !closed {
		return ""
	}
	first := inside[:len(inside)-len(strings.TrimLeft(inside, "0123456789"))]
	after, _, _ = strings.Cut(after, ",")
	if first == "" || strings.Contains(after, "[") {
		return ""
	}
	return prefix + first + after
}

// Local returns the number of ranks on this machine; all of them if they use the loopback interface.
func (p *Place) Local() int {
	if p.LocalSize > 0 {
		return p.LocalSize
	}
	if p.loopback() && !p.InCluster {
		return p.Size
	}
	return 1
}

// String returns "rank R of N".
func (p *Place) String() string { return fmt.Sprintf("rank %d of %d", p.Rank, p.Size) }

func (p *Place) address() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// lookupTime limits a DNS lookup.
const lookupTime = 10 * time.Second
