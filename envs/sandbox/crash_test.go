//go:build crash

package sandbox

func init() { slowAttacks = true }
