// SPDX-License-Identifier: Apache-2.0

// terrace-dra is Terrace's driver for Kubernetes' Dynamic Resource Allocation: it runs on each node with a terraced, publishes that
// one's pools, and turns allocated claims into leases. docs/operations/kubernetes.md says how it is used.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "unknown"

type settings struct {
	driver, node, cluster, kubeconfig                          string
	httpSocket, socket, terrace, tenant, tenantSocket          string
	cdiDirectory, pluginDirectory, registryDirectory           string
	interval, everything, away, reconcileEvery, reconcileGrace time.Duration
}

func readSettings() (*settings, error) {
	s := &settings{}
	flag.StringVar(&s.driver, "driver-name", "terrace.dev", "the driver's name, as DeviceClasses select it")
	flag.StringVar(&s.node, "node-name", os.Getenv("NODE_NAME"), "this node's name in Kubernetes (or $NODE_NAME)")
	flag.StringVar(&s.cluster, "cluster-id", "", "what tells this cluster's leases from another's (default: the uid of the namespace kube-system)")
	flag.StringVar(&s.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "how the API server is reached (default: as a pod)")
	flag.StringVar(&s.httpSocket, "terrace-http-socket", "/run/terrace/http.sock", "terraced's socket for HTTP")
	flag.StringVar(&s.socket, "terrace-socket", "/run/terrace/terraced.sock", "terraced's socket, for the command terrace")
	flag.StringVar(&s.terrace, "terrace", "terrace", "the command terrace")
	flag.StringVar(&s.tenant, "tenant", "kubernetes", "whose leases they are; {namespace} is replaced by the claim's namespace")
	flag.StringVar(&s.tenantSocket, "tenant-socket", "", "a socket of that tenant, which containers get; with {namespace} as above (default: none)")
	flag.StringVar(&s.cdiDirectory, "cdi-directory", "/var/run/cdi", "where the container engine looks for devices")
	flag.StringVar(&s.pluginDirectory, "plugin-directory", "", "where the kubelet reaches the driver (default: "+kubeletplugin.KubeletPluginsDir+"/DRIVER)")
	flag.StringVar(&s.registryDirectory, "registry-directory", kubeletplugin.KubeletRegistryDir, "where the kubelet looks for drivers")
	flag.DurationVar(&s.interval, "interval", 2*time.Second, "between two looks at the manager's events")
	flag.DurationVar(&s.everything, "look-every", 30*time.Second, "between two looks at its pools, when nothing happens")
	flag.DurationVar(&s.away, "away-after", 30*time.Second, "when the manager has not answered for so long, no pod is scheduled to its pools")
	flag.DurationVar(&s.reconcileEvery, "reconcile-every", 10*time.Minute, "between two looks for leases without a claim")
	flag.DurationVar(&s.reconcileGrace, "reconcile-grace", 2*time.Minute, "for how long a lease is without a claim before it is released")
	showVersion := flag.Bool("version", false, "say the version, and end")
	klog.InitFlags(nil)
	flag.Parse()
	if *showVersion {
		fmt.Println("terrace-dra", version)
		os.Exit(0)
	}
	return s, s.check()
}

func (s *settings) check() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("%q: there are only flags; see -help", flag.Arg(0))
	}
	if problems := validation.IsDNS1123Subdomain(s.driver); len(problems) > 0 {
		return fmt.Errorf("-driver-name %q: %s", s.driver, problems[0])
	}
	if s.node == "" {
		return errors.New("-node-name (or $NODE_NAME) is missing: the name that this node has in Kubernetes")
	}
	if s.tenant == "" {
		return errors.New("-tenant is empty: say whose leases they are")
	}
	if s.interval <= 0 || s.everything < s.interval || s.away <= 0 || s.reconcileEvery <= 0 || s.reconcileGrace <= 0 {
		return errors.New("-interval, -look-every, -away-after, -reconcile-every and -reconcile-grace are positive, -look-every at least -interval")
	}
	if s.pluginDirectory == "" {
		s.pluginDirectory = filepath.Join(kubeletplugin.KubeletPluginsDir, s.driver)
	}
	return os.MkdirAll(s.pluginDirectory, 0o750)
}

func (s *settings) kube() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if s.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("how is the API server reached? say -kubeconfig outside of a pod: %w", err)
	}
	config.UserAgent = "terrace-dra/" + version
	return kubernetes.NewForConfig(config)
}

// clusterID waits for the API server: without it nothing can be prepared either.
func (s *settings) clusterID(ctx context.Context, kube kubernetes.Interface) (string, error) {
	for s.cluster == "" {
		namespace, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err == nil {
			return string(namespace.UID), nil
		}
		klog.FromContext(ctx).Error(err, "Cannot read the namespace kube-system, whose uid tells this cluster's leases from another's; trying again")
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(s.interval):
		}
	}
	return s.cluster, nil
}

func run(ctx context.Context, s *settings) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	kube, err := s.kube()
	if err != nil {
		return err
	}
	cluster, err := s.clusterID(ctx, kube)
	if err != nil {
		return err
	}
	notifier := &claimNotifier{kube: kube, driver: s.driver, node: s.node}
	d := &driver{
		name: s.driver, node: s.node, owner: ownerOf(cluster, s.node), tenant: s.tenant, kube: kube, terrace: newManager(s.httpSocket),
		cdi:   &terraceCLI{program: s.terrace, socket: s.socket, directory: s.cdiDirectory, tenantSocket: s.tenantSocket},
		fatal: func(err error) { cancel(err) }, notify: notifier.notify,
	}
	klog.FromContext(ctx).Info("Starting", "version", version, "driver", s.driver, "node", s.node, "owner", d.owner, "terrace", s.httpSocket)
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(s.driver), kubeletplugin.NodeName(s.node), kubeletplugin.KubeClient(kube),
		kubeletplugin.PluginDataDirectoryPath(s.pluginDirectory), kubeletplugin.RegistrarDirectoryPath(s.registryDirectory))
	if err != nil {
		return fmt.Errorf("start the kubelet's plugin (are %s and %s there?): %w", s.pluginDirectory, s.registryDirectory, err)
	}
	watcher := &watcher{
		driver: d, publish: helper.PublishResources, interval: s.interval, everyTime: s.everything, away: s.away,
		reconcile: &reconciler{driver: d, every: s.reconcileEvery, grace: s.reconcileGrace},
	}
	watcher.loop(ctx)
	helper.Stop()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func main() {
	s, err := readSettings()
	if err != nil {
		fmt.Fprintln(os.Stderr, "terrace-dra:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "terrace-dra:", err)
		os.Exit(1)
	}
}
