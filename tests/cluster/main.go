// Kubernetes' API server and etcd in one program, whose first argument says which: each reads the rest as its own.
package main

import (
	"fmt"
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) > 1 {
		name := os.Args[1]
		os.Args = os.Args[1:]
		switch name {
		case "etcd":
			etcdmain.Main(os.Args)
			return
		case "kube-apiserver":
			os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
		}
	}
	fmt.Fprintln(os.Stderr, "say etcd or kube-apiserver")
	os.Exit(2)
}
