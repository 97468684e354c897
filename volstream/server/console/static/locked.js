// A link from another site does not bring the cookie along, because that is strict. Asking again from this page does.

const key = "volstream-asked-again";
if (sessionStorage.getItem(key) === location.href) {
  sessionStorage.removeItem(key);
} else {
  sessionStorage.setItem(key, location.href);
  location.reload();
}
